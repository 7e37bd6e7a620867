"""Ring: the timestamp of every TCP segment, from a packet socket's memory."""
