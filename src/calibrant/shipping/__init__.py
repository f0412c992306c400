"""Ship: artifact, ONNX, scikit-learn wrapper, service, monitor."""
