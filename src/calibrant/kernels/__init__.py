"""Inner loops: serial, GIL-free functions over a block of rows, each a numpy twin and a compiled one."""
