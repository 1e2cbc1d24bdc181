"""The form that submits a job: its document, its fields, its uploads, and how they are shown."""
