"""Other people's file formats, in and out. One module per format; nothing here runs a model."""
