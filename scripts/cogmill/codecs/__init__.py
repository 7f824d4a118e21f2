"""Tiles to bytes and back."""
