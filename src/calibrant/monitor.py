"""Watching calibration in production, under its public name."""

from calibrant.shipping.group_monitor import GroupMonitor
from calibrant.shipping.monitor import Monitor, MonitorReport

__all__ = ["GroupMonitor", "Monitor", "MonitorReport"]
