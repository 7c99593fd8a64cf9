"""What a finished or running piece of work is shown as: tables, CSV and pictures. Imports no torch."""
