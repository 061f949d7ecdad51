"""How efficient a kernel is: measured tables, published figures, assumptions; each number with its origin."""
