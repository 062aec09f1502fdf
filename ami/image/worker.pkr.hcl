# The same image as `gridml ami build` makes, for those who use Packer. FOLDER is what `gridml ami stage FOLDER` makes:
#   packer build -var folder=FOLDER FOLDER/worker.pkr.hcl
packer {
  required_plugins {
    amazon = {
      source  = "github.com/hashicorp/amazon"
      version = ">= 1.2"
    }
  }
}

variable "folder" {
  type        = string
  description = "Made by gridml ami stage: the scripts, the unit, and the wheel."
}

variable "region" {
  type    = string
  default = "eu-central-1"
}

variable "version" {
  type        = string
  default     = "packer"
  description = "The value of the tag gridml, by which gridml launch finds the image."
}

source "amazon-ebs" "worker" {
  region        = var.region
  ami_name      = "gridml-worker-${formatdate("YYYYMMDD-hhmmss", timestamp())}"
  instance_type = "t3.medium"
  ssh_username  = "admin"
  imds_support  = "v2.0"

  source_ami_filter {
    filters = {
      name                = "debian-12-amd64-*"
      virtualization-type = "hvm"
      root-device-type    = "ebs"
    }
    owners      = ["136693071363"]
    most_recent = true
  }

  metadata_options {
    http_endpoint = "enabled"
    http_tokens   = "required"
  }

  launch_block_device_mappings {
    device_name           = "/dev/xvda"
    volume_size           = 16
    volume_type           = "gp3"
    delete_on_termination = true
  }

  tags = {
    gridml = var.version
  }
  snapshot_tags = {
    gridml = var.version
  }
}

build {
  sources = ["source.amazon-ebs.worker"]

  provisioner "shell" {
    inline = ["cloud-init status --wait >/dev/null || true", "mkdir /tmp/gridml-image"]
  }

  provisioner "file" {
    source      = "${var.folder}/"
    destination = "/tmp/gridml-image"
  }

  # This must be the last step: install.sh also removes the SSH key with which Packer logs in.
  provisioner "shell" {
    inline = ["sudo sh /tmp/gridml-image/install.sh && rm -rf /tmp/gridml-image"]
  }
}
