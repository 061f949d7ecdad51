"""What is shown: terminal tables and JSON documents."""
