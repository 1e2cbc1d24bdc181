"""Images: decoded, resized, cropped, turned, flipped and normalised on the host, batch by batch."""
