"""A ResNet of torchvision's with drawn weights: its state as an npz, and what it makes of images. Run by `.torch`.

`MODEL IMAGES.npy STATE.npz LOGITS.npy`; the images are [N, H, W, 3] uint8.
"""

import sys

import numpy as np
import torch
import torchvision


def main(model: str, images: str, state: str, logits: str) -> None:
    """Writes the two files."""
    torch.manual_seed(1)
    network = getattr(torchvision.models, model)(weights=None, num_classes=7).eval()
    for norm in network.modules():
        if isinstance(norm, torch.nn.BatchNorm2d):
            for tensor, low, high in ((norm.weight, 0.5, 1.0), (norm.bias, -0.2, 0.2), (norm.running_mean, -0.1, 0.1)):
                torch.nn.init.uniform_(tensor, low, high)
            torch.nn.init.uniform_(norm.running_var, 0.5, 1.5)
    pixels = torch.from_numpy(np.load(images)).permute(0, 3, 1, 2).float() / 255
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    with torch.no_grad():
        found = network((pixels - mean[:, None, None]) / deviation[:, None, None])
    np.savez(state, **{name: tensor.numpy() for name, tensor in network.state_dict().items()})
    np.save(logits, found.numpy())


if __name__ == "__main__":
    main(*sys.argv[1:])
