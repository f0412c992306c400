"""REPORT: figures for papers (`calibrant.plots`) and the self-contained HTML page (`write_report`)."""
