"""Vision: images and video frames in a prompt, and the models that encode them."""
