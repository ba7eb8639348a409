"""Object stores: the only place where Tenure's truth lives."""
