"""SQL of files, of uploads, and of the parts that the file store holds."""
