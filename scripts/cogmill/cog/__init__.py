"""Cloud Optimized GeoTIFF: where the tiles of a file lie, reading, writing and checking them."""
