"""The image that EC2 instances boot: the daemon that runs a worker there, and how the image is made."""
