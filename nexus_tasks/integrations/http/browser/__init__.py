"""The page at ``/``: a browser of memories, which asks the API below ``/v1`` like any other client."""
