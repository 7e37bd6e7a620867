"""Attribution: which part of a slow token is the client's, the network's, the server's or the engine's."""
