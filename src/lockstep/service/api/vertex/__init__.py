"""Vertex AI's form of models and their versions: uploaded models, endpoints, and models deployed at them."""
