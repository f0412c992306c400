"""Watching calibration in production, under its public name."""

from calibrant.shipping.monitor import Monitor, MonitorReport

__all__ = ["Monitor", "MonitorReport"]
