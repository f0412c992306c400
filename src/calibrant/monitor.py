"""Watching calibration in production, under its public name."""

from calibrant.shipping.monitor import GroupMonitor, GroupReport, Monitor, MonitorReport

__all__ = ["GroupMonitor", "GroupReport", "Monitor", "MonitorReport"]
