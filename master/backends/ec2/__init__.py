"""Amazon EC2: workers on spot instances, one each."""
