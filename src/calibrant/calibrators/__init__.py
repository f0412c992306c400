"""CALIBRATE: logits in, calibrated logits out; one file a method, `base.py` holds the contract."""
