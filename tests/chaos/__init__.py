"""A suite that breaks things on purpose: `make chaos`, and a short form of it in `test_chaos.py`."""
