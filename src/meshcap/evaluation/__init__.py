"""A model and a split to captions, scores, calibrated confidences and a report."""
