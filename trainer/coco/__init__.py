"""COCO: reading, checking, drawing and bundling instance-segmentation data. No TensorFlow."""
