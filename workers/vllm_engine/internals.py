"""What is known of vLLM's insides. All that its versions may change stands here."""

SUFFIX_CHARS = 9
"""vLLM makes a request's id its own by adding a dash and eight hexadecimal digits."""


def client_id(request_id: str) -> str:
    """The id that a request was given, of the one that the scheduler knows."""
    return request_id[:-SUFFIX_CHARS]
