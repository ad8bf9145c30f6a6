"""Paths, user and ports of the pods' image, shared by manifests, the image's build and the lab's simulated nodes."""

USER = "dlami"
UID = 1000  # and the group's number
HOME = f"/home/{USER}"
PROJECT = "/opt/dlami-cluster"  # this project with its .venv, read-only to USER; the working directory
PYTHON = f"{PROJECT}/.venv/bin/python"
TORCH = "/opt/pytorch"  # of an image with PyTorch, its environment: where the trainer looks for one
SSH_PORT = 2222  # one that USER may listen on
SSH_FOLDER = f"{HOME}/.ssh"  # where an MPIJob's key pair is mounted
SSHD_CONFIG = "/etc/dlami/sshd_config"
SSHD = ("/usr/sbin/sshd", "-De", "-f", SSHD_CONFIG)  # a worker's command
