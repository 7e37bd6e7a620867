"""Epoll: raw sockets, one epoll, the kernel's receive timestamps."""
