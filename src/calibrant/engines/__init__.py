"""Where a pass over chunks runs: `local` threads, or a `dask` cluster. The contract is `engines.engine.Engine`."""
