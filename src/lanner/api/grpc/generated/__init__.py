"""Made from proto/ by tools/generate_grpc.py; never edited by hand."""
