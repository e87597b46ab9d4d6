"""Measurements that print tables: `meshcap bench decode`, `meshcap bench train-step`."""
