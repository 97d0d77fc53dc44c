"""The benchmark: result files, the paper's numbers, suites of ablations, tables and figures."""
