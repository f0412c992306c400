"""Compare and choose: intervals, comparison, measurement, shift, deferral."""
