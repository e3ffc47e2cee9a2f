"""Training that outlives failures, beside plain torchft and plain data-parallel torch: `python -m benches.training`."""
