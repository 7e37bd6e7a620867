"""Figures: captures decoded into Records (columns of arrivals), and every figure computed from them."""
