"""The forms of requests for predictions: JSON instances, and the tensors of the Open Inference Protocol."""
