"""The Hugging Face Hub: search, download and upload."""
