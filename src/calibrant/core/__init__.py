"""Words everything shares: the input gate, softmax, the bin rule, errors, rows, threads, progress."""
