"""COCO data of instance segmentation: reading, checking, drawing and bundling. No TensorFlow."""
