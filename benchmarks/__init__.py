"""What is measured, and how: one module per subject."""
