"""What is computed: index notation, trees of operands and functions, programs."""
