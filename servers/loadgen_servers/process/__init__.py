"""A server as a process: started, supervised, its port and its log watched, ended with all it started."""
