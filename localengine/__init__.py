"""The in-process engine: continuous batching, paged KV cache, two traffic classes inside."""
