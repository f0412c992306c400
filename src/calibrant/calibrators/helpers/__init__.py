"""What several methods share besides solvers: confidence bins, new confidences, streamed and weighted rows."""
