"""The table of orders."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Make the table."""

    operations = [  # noqa: RUF012
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("customer", models.CharField(max_length=100)),
                ("text", models.TextField()),
                ("wants_memory", models.BooleanField(default=True, db_index=True)),
            ],
        ),
    ]
