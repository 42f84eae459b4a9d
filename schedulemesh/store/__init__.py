"""The memory: where facts and blobs are kept, and how they become durable."""
