"""What goes onto an EC2 image. The name is held here so that the five packages install together; the image is not
built yet."""
