"""cogmill: campaigns of GeoTIFF scenes into analysis-ready COGs."""

__version__ = "0.1.0"
