"""Files in, arrays and labels out."""
