"""Lines that ride in batches.

``diversion`` is all the batches of one job. ``dealer`` puts lines into them; ``carrier`` sees each to its end, on
behalf of an ``errand``: ``hand_in`` brings it to its provider, and ``batch_verdict`` judges what comes back.
``cancelling`` ends a job with its batches.
"""
